"""`python -m phpq` is the command `phpq`, for launchers: torchrun -m phpq train ..."""

from phpq.cli import main

if __name__ == "__main__":
    main()
