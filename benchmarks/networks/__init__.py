"""Clients behind bad networks: who is reported offline although they are there, and how late are the dead?"""
