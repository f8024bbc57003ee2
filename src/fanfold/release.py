"""The release of this package, for whatever records which one wrote it."""

VERSION = "0.1.0"
