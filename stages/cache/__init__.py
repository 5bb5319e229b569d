"""Stages read artifacts and write artifacts; none imports another."""
