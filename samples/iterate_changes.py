"""Print every change of a table, in a loop.

Start ``streamclient server`` in another terminal, make the table with ``streamclient tables create orders``, and write
rows with any client of Tablestore. Ctrl-C ends it; started again, it goes on where it was.
"""

import streamclient

if __name__ == "__main__":
    for batch in streamclient.changes("orders", group="printer"):
        for record in batch:
            print(record, flush=True)
