"""Prices come in; one clean bar table per asset comes out."""
