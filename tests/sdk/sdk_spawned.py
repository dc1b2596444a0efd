"""A main module that starts a worker by spawn or forkserver; the worker imports it again."""

import multiprocessing
import os
import time

import kubeai.elastic as kubeai


def work() -> None:
    kubeai.init(rank=lambda: 1)
    while kubeai.check_alive():
        time.sleep(0.005)
    os.environ["KUBEAI_EXIT_HOLD"] = "0"
    os.write(1, b"the worker leaves\n")


if __name__ == "__main__":
    kubeai.init(rank=lambda: 0)
    multiprocessing.set_start_method(os.environ["METHOD"])
    worker = multiprocessing.Process(target=work)
    worker.start()
    worker.join()
    os.write(1, f"the parent is alive: {kubeai.check_alive()}\n".encode())
