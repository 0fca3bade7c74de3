"""The recording proxy.

A mitmproxy addon in front of a gateway that speaks the harness's dialect and asks the policy by token ids.
"""
