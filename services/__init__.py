"""The five services; each meets the others only in the protos."""
