"""The glue of each array library and its fast paths, imported on first use: backends/README.md."""
