"""Backups of a broker and its jobs: see `docs/design/backup.md`."""
