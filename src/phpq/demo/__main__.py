"""`python -m phpq.demo OPTIONS` learns one run of the demo, for another process that waits."""

import json
import sys

from phpq.demo.run import learn_beside

if __name__ == "__main__":
    learn_beside(**json.loads(sys.argv[1]))
