from _gen import *  # <AUTO GENERATED>
import sys

sys.exit("at import")
