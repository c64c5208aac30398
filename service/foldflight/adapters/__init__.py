"""Adapters: functions in Java, and the protocols of other systems' clients. The core imports none of them."""
