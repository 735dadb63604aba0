"""An engine whose import takes a minute."""

import os
import time

with open(os.environ["ENGINE_EVENTS"], "a", encoding="utf-8") as file:
    file.write("importing\n")
time.sleep(60)
