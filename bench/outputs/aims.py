"""The performance targets of sinks."""

from bench.aims import Aim

MEASURE = "upserts"
UNIT = "rows/s"
CPU = "CPU s for 100 k rows"
POSTGRES = "PostgreSQL"
REDIS = "Redis, hashes"

AIMS = (
    Aim(measure=MEASURE, cell=POSTGRES, unit=UNIT, at_least=50_000),
    Aim(measure=MEASURE, cell=POSTGRES, unit=UNIT, against="jdbc", at_least=3),
    Aim(measure=MEASURE, cell=POSTGRES, unit=UNIT, against="driver", at_least=3),
    Aim(measure=MEASURE, cell=REDIS, unit=UNIT, against="driver", at_least=3),
)
