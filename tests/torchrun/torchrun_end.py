"""Two agents of three wait for each other at their end, although the third has left in process. Run by a test."""

import sys
import threading

from kubeai.torchrun import stores
from torch.distributed.elastic.agent.server import api
from torch.distributed.elastic.utils import store as store_util

_SECONDS = 20.0


def _main() -> None:
    first, where = stores.open_store("127.0.0.1")
    second = stores.connect(where)

    def ends(store: object) -> None:
        store_util.barrier(store, 3, api._TERMINAL_STATE_SYNC_ID, barrier_timeout=_SECONDS)
        sys.stdout.write("ended\n")

    agents = [threading.Thread(target=ends, args=(store,)) for store in (first, second)]
    agents[0].start()
    for _ in range(2):  # both remaining agents count it out
        stores.count_out(where, [2], 3)
    agents[1].start()
    for agent in agents:
        agent.join()


if __name__ == "__main__":
    _main()
