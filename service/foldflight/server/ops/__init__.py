"""What operators see: health, metrics, status, logs."""
