"""Millions of visits with everything at once: does anything grow, or slow down?"""
