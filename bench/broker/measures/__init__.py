"""The measurements, one module each; each adds readings to a stage."""
