"""Every decision about one model on one device at one level, made once and with reasons."""

from engine.plan.facts import DECIDED, model_facts
from engine.plan.make import Observations, Tables, make_plan, plan_for
from engine.plan_values import Decision, FusionReport, Given, KernelChoice, PieceChoice, Plan, TokenRange
