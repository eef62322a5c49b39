"""Time llama.cpp on a GGUF file, for `kernels.py`: run by an interpreter that has `llama-cpp-python`.

Reads lines of `rows` from stdin and answers each with the seconds that a forward of so many rows took.
"""

from __future__ import annotations

import sys
import time

import llama_cpp as cpp


def main() -> None:
    path, threads = sys.argv[1], int(sys.argv[2])
    cpp.llama_backend_init()
    silent = cpp.llama_log_callback(lambda level, text, data: None)
    cpp.llama_log_set(silent, None)
    model = cpp.llama_model_load_from_file(path.encode(), cpp.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp cannot load {path}")
    params = cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 1024
    params.n_threads = params.n_threads_batch = threads
    context = cpp.llama_init_from_model(model, params)
    print("ready", flush=True)
    for line in sys.stdin:
        rows = int(line)
        tokens = (cpp.llama_token * rows)(*[(7 * n + 3) % 256 for n in range(rows)])  # the batch points to it
        batch = cpp.llama_batch_get_one(tokens, rows)
        cpp.llama_memory_clear(cpp.llama_get_memory(context), True)
        started = time.perf_counter()
        status = cpp.llama_decode(context, batch)
        cpp.llama_synchronize(context)
        elapsed = time.perf_counter() - started
        if status != 0:
            raise SystemExit(f"llama.cpp failed on {rows} rows: {status}")
        print(elapsed, flush=True)


if __name__ == "__main__":
    main()
