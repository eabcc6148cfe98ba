"""What tests of this package, and of drivers and codecs made for it, build on."""
