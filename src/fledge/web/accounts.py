"""The account of a model for the page: the accounting's numbers for a recipe or bundle with some settings moved."""

from __future__ import annotations

import re

from fastapi import APIRouter

from fledge.accounting import Account, account_run
from fledge.accounting.diagram import draw_chart, model_chart
from fledge.accounting.diagram.chart import Chart
from fledge.accounting.diagram.models import TITLES
from fledge.accounting.memory import optimizer_numbers
from fledge.accounting.parameters import Parameters
from fledge.bundle.describe import open_manifest
from fledge.config import ModelConfig, RunConfig, load_recipe, parse, recipe_names
from fledge.config.sizes import OPTIMIZER_SIZES
from fledge.errors import FledgeError, nearest
from fledge.web.library import Library
from fledge.web.schemas import AccountAnswer, AccountRequest, NodeFacts, PartFacts, ProductFacts, TensorFacts

# What the accounting calls the products and the memory of a box, where its key alone does not say it.
PRODUCTS = {"scores": "scores q", "mix": "weights·v", "read": "scores·x"}
MEMORY = {
    "embedding": ["embedding and final norm"],
    "norm": ["norms"],
    "attention": ["queries, keys, values", "attention"],
    "feed": ["feed-forward"],
    "neuron": ["neurons"],
    "recurrent": ["gates", "states"],
    "head": ["logits"],
}
# The page has its own colours for the chart, and its policy allows no styles inside a drawing.
STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
DEVICE_GIGABYTES = (8, 16, 24, 48, 80, 141)
LARGEST = {
    "layers": 4096,
    "width": 1 << 17,
    "heads": 1024,
    "kv_heads": 1024,
    "head_size": 1 << 14,
    "hidden": 1 << 20,
    "multiplier": 4096,
}


def routes(library: Library) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["model"])

    @router.post("/account")
    def model_account(request: AccountRequest) -> AccountAnswer:
        """Parameters, FLOPs and memory by component, and the diagram, of a recipe or bundle with settings changed: what
        `fledge account` says of it."""
        config, vocabulary_size, positions = find_config(library, request)
        model = parse(ModelConfig, {**config.model.model_dump(), **request.model})
        for name, limit in LARGEST.items():
            value = getattr(model, name)
            if value is not None and value > limit:
                raise FledgeError(f"model.{name} = {value} is more than the page supports: at most {limit:,}.")
        return account_answer(
            account_run(
                config.model_copy(update={"model": model}),
                request.vocabulary_size or vocabulary_size,
                positions,
                batch=request.batch,
                context=request.context_length,
            )
        )

    return router


def find_config(library: Library, request: AccountRequest) -> tuple[RunConfig, int, int | None]:
    """The settings to start from, their vocabulary size, and the context length that a bundle was built with."""
    if request.bundle is not None:
        manifest = open_manifest(library.bundle(request.bundle))[1]
        config = parse(RunConfig, manifest.config, where=request.bundle)
        return config, manifest.model.vocabulary_size, manifest.model.context_length
    name = request.recipe or "akjv-demo"
    if name not in recipe_names():  # a recipe may be a path on the command line, and must not be one here
        raise FledgeError(f"There is no recipe called {name!r}. {nearest(name, recipe_names())}")
    config = load_recipe(name)
    return config, config.tokenizer.vocabulary_size or 50_257, None


def account_answer(found: Account) -> AccountAnswer:
    memory = found.memory
    context = max(found.context_length, found.positions or 1)
    # An architecture of one's own has an account, and no drawing of ours.
    known = found.config.architecture in TITLES
    chart = model_chart(found.config, found.vocabulary_size, context) if known else None
    return AccountAnswer(
        settings=found.config.model_dump(),
        vocabulary_size=found.vocabulary_size,
        context_length=found.context_length,
        batch=found.batch,
        optimizer=found.optimizer,
        optimizer_title=OPTIMIZER_SIZES[found.optimizer].title,
        precision=found.precision,
        parameters=found.parameters.total,
        parameters_by_component=found.parameters.by_component,
        tensors=[
            TensorFacts(
                name=t.name,
                component=t.component,
                shape=list(t.shape),
                times=t.times,
                count=t.count,
                training_bytes=4 * (2 * t.count + optimizer_numbers(found.optimizer, Parameters((t,)))),
            )
            for t in found.parameters.tensors
        ],
        forward_flops=found.forward_flops,
        flops_per_token=found.flops_per_token,
        flops_by_component=found.flops_by_component,
        products=[ProductFacts.model_validate(product, from_attributes=True) for product in found.products],
        memory=memory.total,
        memory_parts=[
            PartFacts(name=part.name, bytes=part.at(found.batch), grows=part.per_window > 0) for part in memory.parts
        ],
        bytes_per_window=memory.slope,
        bytes_at_any_batch=memory.intercept,
        largest_batch={str(size): memory.largest_batch(size * 1e9) for size in DEVICE_GIGABYTES},
        diagram=STYLE.sub("", draw_chart(chart)) if chart else "",
        nodes=nodes(chart, found) if chart else [],
    )


def nodes(chart: Chart, found: Account) -> list[NodeFacts]:
    """The boxes in the order in which they are drawn, each with the names of its tensors, products and memory."""
    facts = []
    for node in (node for row in chart.rows for node in row if node.shape == "box"):
        tensors = [t.name for t in found.parameters.tensors if node.key in parts_of(t.name)]
        beginning = PRODUCTS.get(node.key, node.key)
        products = [product.name for product in found.products if product.name.startswith(beginning)]
        facts.append(
            NodeFacts(
                key=node.key,
                title=node.title,
                detail=node.detail,
                tensors=tensors,
                products=[name for name in products if name == node.key or node.key in PRODUCTS],
                memory=MEMORY.get(node.kind, []),
            )
        )
    return facts


def parts_of(name: str) -> list[str]:
    """A tensor's name without the number of its layer.

    >>> parts_of("layers.N.attn.q_proj.weight"), parts_of("recurrent.weight_ih_lN")
    (['layers', 'N', 'attn', 'q_proj', 'weight'], ['recurrent', 'weight_ih'])
    """
    return name.removesuffix("_lN").split(".")
