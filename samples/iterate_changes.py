"""Print every change of a table, in a loop.

Start ``streamclient server`` in another terminal, create the table with ``streamclient tables create orders``, and
write rows with any Tablestore client. Ctrl-C ends the program. The next start continues at the stored position.
"""

import streamclient

if __name__ == "__main__":
    for batch in streamclient.changes("orders", group="printer"):
        for record in batch:
            print(record, flush=True)
