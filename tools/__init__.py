"""What is needed to build and document the package, and is not part of it: generators of files, manual and plugin."""
