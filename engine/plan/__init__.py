"""Every decision about one model on one device at one level, made once and with reasons."""

from engine.plan.make import Observations, Tables, make_plan, model_facts, plan_for
from engine.plan_values import Decision, FusionReport, Given, KernelChoice, Plan
