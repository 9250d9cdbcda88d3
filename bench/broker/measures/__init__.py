"""What is measured, one module each; every one takes a stage and adds readings to it."""
