"""`python -m launch` is `midstream`."""

from launch.cli import main

main()
