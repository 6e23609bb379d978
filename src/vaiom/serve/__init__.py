"""A trained model as an HTTP service: live assets that survive restarts, a drift monitor, a
dashboard.
"""
