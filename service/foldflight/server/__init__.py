"""The server's shell: Flight, health, HTTP, metrics, logs, settings and lifecycle around `exchange/`."""
