"""What is shown: logging, a recorder of events, progress. Optional packages are imported here, and lazily."""
