"""Every number that was published, with its source; nothing else, so that a reader can check it line by line.

Accuracies are top-1 in percent, single runs without error bars. `None`: not published. The order of the columns is
DATASETS. Sources are named by the keys of SOURCES.
"""

DATASETS = ("cifar10", "cifar100", "stl10", "tinyimagenet")
TITLES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "stl10": "STL-10",
    "tinyimagenet": "Tiny ImageNet",
    "patterns": "patterns (embedded)",
}

SOURCES = {
    "paper": "MSVQ paper, arXiv 2305.05370",
    "reproduced": "MSVQ paper, row marked *: its authors' own reproduction",
    "copied": "MSVQ paper, copied from the ReSSL paper (SCE: presumably from its own)",
    "readme": "README of the authors' code",
    "benchmark": (
        "the authors' companion benchmark, pc-cp/Benchmark-Methods-For-MNN (MoCoV2 symmetric, SimCLR across views, "
        "Un-Mix on BYOL; linear at lr 30, in steps)"
    ),
    "benchmark, before": "the same, before the authors mended the order of queue and loss",
    "later": (
        "MNN's own paper, arXiv 2311.00562, by the same authors and later than the MSVQ paper (mean of three seeds; "
        "linear at lr 30, in steps)"
    ),
}
OTHER_PROTOCOL = ("benchmark", "benchmark, before", "later")

Row = tuple[float | None, float | None, float | None, float | None]

# Table 4, linear evaluation: row -> source -> accuracy. The first source is the one that the difference is taken to:
# where the authors trained a method themselves, that, for it had their protocol.
LINEAR: dict[str, dict[str, Row]] = {
    "supervised": {"copied": (94.22, 74.66, 82.55, 59.26)},
    "simclr": {"copied": (84.92, 59.28, 85.48, 44.38), "benchmark": (87.72, 62.52, None, 45.71)},
    "byol": {"copied": (85.82, 57.75, 87.45, 42.70), "benchmark": (89.54, 63.16, None, 45.29)},
    "simsiam": {"copied": (88.51, 60.00, 87.47, 37.04)},
    "mocov2": {
        "copied": (86.18, 59.51, 85.88, 43.36),
        "benchmark": (89.70, 62.37, None, 46.08),
        "benchmark, before": (89.56, 62.47, None, 46.38),
    },
    "ressl": {
        "reproduced": (90.22, 64.22, 87.64, 45.61),
        "copied": (90.20, 63.79, 88.25, 46.60),
        "benchmark": (89.97, 63.82, None, 46.38),
    },
    "cmsf": {
        "reproduced": (91.00, 62.37, 88.21, 44.50),
        "benchmark": (90.63, 61.24, None, 44.00),
        "benchmark, before": (91.00, 62.37, None, 44.50),
    },
    "unmix": {"reproduced": (90.20, 64.42, 89.76, 45.20), "benchmark": (90.37, 65.30, None, 47.29)},
    "snclr": {
        "reproduced": (88.50, 62.40, 88.24, 46.14),
        "benchmark": (89.64, 65.45, None, 49.62),
        "benchmark, before": (88.86, 65.19, None, 50.15),
    },
    "sce": {
        "reproduced": (90.03, 65.41, 90.06, 48.11),
        "copied": (90.34, 65.45, 89.94, 51.90),
        "benchmark": (90.62, 64.93, None, 48.63),
        "benchmark, before": (89.71, 64.85, None, 48.50),
    },
    "msv": {"paper": (90.92, 65.02, 89.35, 46.68)},
    "mq": {"paper": (90.91, 65.15, 89.58, 46.32)},
    "msvq": {"paper": (91.46, 66.44, 90.41, 48.09), "readme": (None, 66.28, 90.36, None)},
    "msvq-dagger": {"paper": (91.28, 65.82, 89.71, 49.51)},
    # Not rows of table 4: the two variations of table 10, and methods that only the benchmark or a later paper has.
    "msvq-x3": {"paper": (91.05, 66.16, 90.11, 47.45)},
    "msvq-x5": {"paper": (91.16, 67.14, 90.49, 48.55)},
    "nnclr": {"benchmark": (88.06, 60.53, None, 41.70), "benchmark, before": (87.72, 59.62, None, 41.52)},
    "nnclr-k5": {"benchmark": (88.80, 61.25, None, 44.38), "benchmark, before": (88.83, 62.54, None, 44.42)},
    "msf": {"benchmark": (89.60, 59.84, None, 42.52), "benchmark, before": (89.94, 59.94, None, 42.68)},
    "mnn": {"later": (91.47, 67.56, 91.61, 50.70)},
}

# Table 5, kNN with k = 200.
KNN: dict[str, dict[str, Row]] = {
    "simclr": {"benchmark": (85.30, 56.50, None, 37.16)},
    "byol": {"benchmark": (87.54, 57.24, None, 37.65)},
    "mocov2": {"benchmark": (88.05, 57.64, None, 37.29), "benchmark, before": (87.82, 57.29, None, 37.77)},
    "ressl": {"reproduced": (89.11, 57.93, 84.18, 37.19), "benchmark": (88.89, 57.48, None, 37.14)},
    "cmsf": {
        "reproduced": (89.30, 55.57, 84.11, 36.79),
        "benchmark": (88.95, 54.20, None, 35.97),
        "benchmark, before": (89.30, 55.57, None, 36.79),
    },
    "unmix": {"reproduced": (88.38, 59.52, 85.18, 38.81), "benchmark": (87.99, 59.11, None, 38.65)},
    "snclr": {
        "reproduced": (86.15, 55.07, 82.18, 36.86),
        "benchmark": (87.64, 58.57, None, 41.42),
        "benchmark, before": (87.36, 58.65, None, 41.92),
    },
    "sce": {
        "reproduced": (88.41, 59.30, 85.45, 40.17),
        "benchmark": (89.15, 60.17, None, 40.66),
        "benchmark, before": (88.54, 59.97, None, 40.48),
    },
    "msv": {"paper": (89.64, 59.33, 85.58, 38.78)},
    "mq": {"paper": (89.51, 60.16, 85.69, 38.84)},
    "msvq": {"paper": (90.16, 60.66, 86.51, 40.26)},
    "msvq-dagger": {"paper": (90.23, 61.63, 86.56, 41.81)},
    "nnclr": {"benchmark": (85.47, 50.99, None, 31.62), "benchmark, before": (85.19, 50.54, None, 30.93)},
    "nnclr-k5": {"benchmark": (86.78, 53.21, None, 34.44), "benchmark, before": (86.98, 53.40, None, 34.99)},
    "msf": {"benchmark": (87.86, 51.29, None, 34.79), "benchmark, before": (88.24, 52.32, None, 35.29)},
}

# Tables 6 to 10: linear evaluation of MSVQ, one thing changed. Row -> accuracy, all from the paper.
ABLATIONS: dict[str, dict[str, Row]] = {
    "teacher-temperature": {
        "0.01": (90.87, 65.68, 88.68, 47.26),
        "0.02": (90.68, 65.33, 89.21, 47.81),
        "0.03": (90.73, 66.44, 89.64, 47.96),
        "0.04": (91.46, 66.27, 90.41, 48.09),
        "0.05": (91.20, 65.78, 89.56, 46.99),
        "0.06": (90.62, 63.78, 88.96, 45.72),
        "0.07": (90.32, 58.83, 87.75, 44.47),
    },
    "teacher-augmentation": {"weak": (91.46, 66.44, 90.41, 48.09), "strong": (88.33, 59.55, 86.14, 39.44)},
    "teacher-momentum": {  # of teacher 2; teacher 1 has 0.99 on the first two sets, 0.996 on the others
        "0.93": (90.93, 66.44, None, None),
        "0.95": (91.46, 65.99, 90.00, 47.59),
        "0.97": (91.08, 65.58, None, None),
        "0.99": (90.88, 65.63, 90.41, 48.09),
        "0.993": (None, None, 90.10, 47.55),
        "0.996": (None, None, 90.18, 48.05),
    },
    "queue-size": {
        "512": (90.81, 64.25, 88.10, 44.82),
        "1024": (90.65, 64.82, 89.30, 45.93),
        "2048": (91.40, 65.77, 89.60, 47.04),
        "4096": (91.46, 66.44, 89.69, 47.31),
        "8192": (91.07, 66.08, 89.76, 47.74),
        "16384": (91.07, 66.43, 90.41, 48.09),
        "32768": (91.06, 66.82, 90.11, 48.34),
    },
    "view-position": {
        "msvq": (91.46, 66.44, 90.41, 48.09),
        "msvq-x3": (91.05, 66.16, 90.11, 47.45),
        "msvq-x5": (91.16, 67.14, 90.49, 48.55),
    },
}

# BackProp of table 4: passes of the student. Supervised has none there.
_ONCE = ("mocov2", "ressl", "msv", "mq", "msvq", "msvq-dagger", "msvq-x3", "msvq-x5")
_TWICE = ("simclr", "byol", "simsiam", "cmsf", "unmix", "snclr", "sce")
BACKPROP = {"supervised": "-", **dict.fromkeys(_ONCE, "1x"), **dict.fromkeys(_TWICE, "2x")}

# Figure 5: no numbers are printed; the text says that "all" finds close to twice the false negatives of one view.
FALSE_NEGATIVES_RATIO = 2.0


_TABLES = {"linear": LINEAR, "knn": KNN} | {
    study: {row: {"paper": values} for row, values in table.items()} for study, table in ABLATIONS.items()
}


def published(study: str, row: str, dataset: str) -> dict[str, float]:
    """Source -> accuracy of a row of a study on a data set; empty where nothing was published."""
    if dataset not in DATASETS:
        return {}
    values = {source: values[DATASETS.index(dataset)] for source, values in _TABLES[study].get(row, {}).items()}
    return {source: value for source, value in values.items() if value is not None}


def main_value(study: str, row: str, dataset: str) -> float | None:
    """The number that a row is compared with: the paper's own, never one that was measured by another protocol."""
    sources = published(study, row, dataset)
    return next((value for source, value in sources.items() if source not in OTHER_PROTOCOL), None)
