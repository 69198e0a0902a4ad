"""The fast paths of rope_xp and the glue of each array library. See backends/README.md.

Nothing is imported here: rope_xp imports the module of a library when it first meets its arrays.
"""
