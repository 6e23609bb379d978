"""A trained model as a service: HTTP, live assets that survive a restart, a drift monitor, a dashboard."""
