"""The floor: posix_spawn and wait, COUNT times.

Usage: floor.py COUNT PROGRAM [ARG...]
"""

import json
import os
import sys


def main() -> int:
    count, argv = int(sys.argv[1]), sys.argv[2:]
    done = 0
    for _ in range(count):
        pid = os.posix_spawn(argv[0], argv, os.environ)
        _, status = os.waitpid(pid, 0)
        done += status == 0
    print(json.dumps({"done": done}))
    return 0 if done == count else 1


if __name__ == "__main__":
    sys.exit(main())
