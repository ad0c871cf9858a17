"""What leaves the process: metrics, traces, log records, reports. Imported on first use."""
