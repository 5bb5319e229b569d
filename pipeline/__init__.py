"""The library that the stages share; it knows no stage."""
