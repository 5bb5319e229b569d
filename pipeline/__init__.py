"""The library that the stages share. It imports no stage."""
