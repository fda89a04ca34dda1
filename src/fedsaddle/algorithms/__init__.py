"""Published federated minimax methods, one file a family."""

from fedsaddle.algorithms.averaging import FedAvg, FedProx
from fedsaddle.algorithms.base import Algorithm, Members, Phase, Replies, Round
from fedsaddle.algorithms.catalyst import CatalystScaffoldS
from fedsaddle.algorithms.cdma import CDMAAda, CDMAOne
from fedsaddle.algorithms.coda import CODA
from fedsaddle.algorithms.coda_plus import CODAPlus
from fedsaddle.algorithms.codasca import CODASCA
from fedsaddle.algorithms.compositional import LocalSCGDAM
from fedsaddle.algorithms.drfa import DRFA, DRFAGA, DRFAProx
from fedsaddle.algorithms.fair import AFL, QFedAvg
from fedsaddle.algorithms.local import ExtraStepLocalSGD, LocalSGDA, LocalSGDAPlus
from fedsaddle.algorithms.momentum import LocalSGDAM, LocalSGDM, LocalSGDMRL
from fedsaddle.algorithms.parallel import ParallelSGDA
from fedsaddle.algorithms.scaffold import SCAFFOLD

ALGORITHMS: dict[str, type[Algorithm]] = {
    method.name: method
    for method in (
        *(FedAvg, FedProx, ParallelSGDA, LocalSGDA, LocalSGDAPlus, ExtraStepLocalSGD),
        *(CODA, CODAPlus, CODASCA, CDMAOne, CDMAAda, CatalystScaffoldS),
        *(LocalSGDM, LocalSGDMRL, LocalSGDAM, LocalSCGDAM),
        *(SCAFFOLD, QFedAvg, AFL, DRFA, DRFAProx, DRFAGA),
    )
}

ALIASES = {"npa": ParallelSGDA.name, "cdma-nc": LocalSGDA.name}
"""Other names the papers give these methods."""

__all__ = [
    "AFL",
    "ALGORITHMS",
    "ALIASES",
    "CODA",
    "CODASCA",
    "DRFA",
    "DRFAGA",
    "SCAFFOLD",
    "Algorithm",
    "CDMAAda",
    "CDMAOne",
    "CODAPlus",
    "CatalystScaffoldS",
    "DRFAProx",
    "ExtraStepLocalSGD",
    "FedAvg",
    "FedProx",
    "LocalSCGDAM",
    "LocalSGDA",
    "LocalSGDAM",
    "LocalSGDAPlus",
    "LocalSGDM",
    "LocalSGDMRL",
    "Members",
    "ParallelSGDA",
    "Phase",
    "QFedAvg",
    "Replies",
    "Round",
]
