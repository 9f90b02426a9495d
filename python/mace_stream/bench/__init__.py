"""Measurements that anyone can repeat: ``mace-stream bench``."""
