"""An application whose import takes a minute."""

import os
import time

with open(os.environ["APP_EVENTS"], "a", encoding="utf-8") as file:
    file.write("importing\n")
time.sleep(60)
