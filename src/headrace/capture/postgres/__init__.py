"""PostgreSQL as a source: its catalogue, snapshots by COPY, and its log by the protocol of pgoutput."""
