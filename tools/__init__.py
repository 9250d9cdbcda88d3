"""Programs that the repository itself needs: lock files, and a real Apache Kafka to compare with."""
