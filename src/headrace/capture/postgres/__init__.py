"""PostgreSQL as a source: catalog, snapshots by COPY, and the replication stream of pgoutput."""
