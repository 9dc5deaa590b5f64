"""Our statements with one thing wrong each do not pass: the checker sees."""

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from faststream_outbox.embedded import Database
from tests.order import spoiled
from tests.order.rules import check_with_keys
from tests.order.settings import OrderSettings
from tests.soak.checker import FinalState, Kind, kinds
from tests.soak.history import Event
from tests.soak.lives import assemble
from tests.soak.round import Result, run_round
from tests.soak.settings import FaultRates
