"""1,000 no-ops through TaskFlow's serial engine, in memory: SHAPE is `unordered` or `linear`.

Prints the seconds that the run took, without the preparation.
"""

import sys
import time

from taskflow import engines, task
from taskflow.patterns import linear_flow, unordered_flow

COUNT = 1000


class Nothing(task.Task):
    def execute(self):
        pass


def main():
    shape = {"unordered": unordered_flow, "linear": linear_flow}[sys.argv[1]]
    flow = shape.Flow("nothing")
    for number in range(COUNT):
        flow.add(Nothing(name=f"n{number}"))
    engine = engines.load(flow, engine="serial")
    engine.compile()
    engine.prepare()
    start = time.perf_counter()
    engine.run()
    print(time.perf_counter() - start)


main()
