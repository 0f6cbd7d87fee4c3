"""`msvq reproduce`: the paper's tables and figures again, compared with what was published. A client of the library.

`msvq compare` (compare.py) does the same for one's own pictures, with the same sweeps. In the order of a command:

- reproduce.py    the story: what is asked for, run, collected, written and printed
- paper.py        every published number
- experiments.py  studies, their rows, scales, and the runs (cells) that a request comes to
- estimate.py     how much work those are, and the time that is left
- sweep.py        runs them: directory, child processes, progress; worker.py is such a process
- collect.py      what they have measured, here or elsewhere
- tables.py       a study's numbers as one JSON; claims.py: which of the paper's claims held
- formats.py      that JSON as tables and sentences, Markdown, LaTeX and CSV; figures, files and the page
"""
