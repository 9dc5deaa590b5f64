"""`python -m examples.ordering`: steps of one parcel one after the other, parcels side by side."""
