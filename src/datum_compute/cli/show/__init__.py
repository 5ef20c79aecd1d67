"""Showing things to people and programs: views, tables, terminals, JSON and YAML."""
