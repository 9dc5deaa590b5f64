"""`python -m examples.ordering`: handle the steps of one parcel in order, and several parcels in parallel."""
