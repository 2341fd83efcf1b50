"""What tests of more than one folder stand on."""
